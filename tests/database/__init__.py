"""Making sessions through the database handle: by whom, how often, and when answers are lost."""
