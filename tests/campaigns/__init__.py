"""Long runs that try to break a guarantee, each behind a make target, with a short sample in the ordinary tests."""
