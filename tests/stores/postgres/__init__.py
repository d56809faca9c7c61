"""The PostgreSQL store beyond the contract: its connections, its schema, its faults, behind PgBouncer."""
