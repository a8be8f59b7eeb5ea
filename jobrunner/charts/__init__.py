"""Charts as SVG text, for the dashboard, reports, the soak and the benchmarks.

`scale` turns values into coordinates and labels, `svg` writes elements, `responsive` draws charts that stretch with the
dashboard, and `axes` draws charts that carry their axes inside.
"""
