"""The peers: other job queues on Redis that acknowledge, each in an environment of its own."""
