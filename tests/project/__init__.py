"""The project as a whole: public names, versions and pins, variables, docstrings, and no path of one machine."""
