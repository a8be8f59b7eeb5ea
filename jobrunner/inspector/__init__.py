"""The read model behind the command line, the dashboard and the metrics. It writes nothing but the audit log."""
