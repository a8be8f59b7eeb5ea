"""The report on an archive: its queries, its tables, its charts and its page."""
