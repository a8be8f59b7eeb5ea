"""What can be done from a page. A module has `routes: list[Action]`; an endpoint does it and returns `Done`."""
