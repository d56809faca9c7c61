"""What the library tells about itself: spans, measurements, log lines, probes."""
