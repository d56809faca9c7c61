"""The client and the loop against a model server that is not ours: broken, killed and read along with."""
