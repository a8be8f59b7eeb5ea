"""Actions of the dashboard. Each module declares `routes: list[Action]`; an endpoint acts and returns `Done`."""
