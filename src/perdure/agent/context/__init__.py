"""What a model is sent: the window, its compactor, recall of what is no longer shown, large results, token counts."""
