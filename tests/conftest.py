"""What all tests share: how hypothesis searches. Fixtures live beside the tests that use them."""

from hypothesis import settings

# Disks and shared cores make single examples slow at times, so no deadline; a failure prints its blob.
settings.register_profile("perdure", deadline=None, print_blob=True)
settings.load_profile("perdure")
