"""One suite of promises that every store keeps."""
