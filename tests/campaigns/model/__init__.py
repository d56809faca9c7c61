"""Random histories by two writers, compared step by step with a plain model in memory."""
