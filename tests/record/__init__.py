"""How state becomes bytes: the codec, packs, and how much is written for how much that changed."""
