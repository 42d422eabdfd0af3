"""Documents that launch a channel's image: what each kind of team pastes or applies."""
