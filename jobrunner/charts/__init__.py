"""Charts as SVG text, for the dashboard, reports and benchmarks."""
