"""Who may call the lab's API: callers with a session token of the lab, and no web page."""
