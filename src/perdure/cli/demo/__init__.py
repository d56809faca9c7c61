"""The demo: an agent that is really killed, a bank that is really outside, and the reckoning afterwards."""
