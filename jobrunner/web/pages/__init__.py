"""One module for each page. A module has `routes: list[Page]`; an endpoint reads and returns (template, values)."""
