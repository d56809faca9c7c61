"""Small apps with one planted fault each, and one without: what ``perdure doctor`` must tell apart."""
