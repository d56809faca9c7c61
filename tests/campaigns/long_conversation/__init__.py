"""A conversation of very many answers whose process is killed: the window stays what it promises to be."""
