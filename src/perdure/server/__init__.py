"""The server: an HTTP API and pages for people over one database. Needs the extra ``console``."""
