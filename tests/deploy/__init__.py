"""What is in deploy/: manifests that fit their schemas, commands that exist, measurements that are really made."""
