"""``perdure doctor``: an app with a planted fault is found out, and a sound one is left in peace."""
