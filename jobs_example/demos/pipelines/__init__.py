"""What demos of pipelines share: their processes and kills, the log of Spark's batches, what remains on the server."""
