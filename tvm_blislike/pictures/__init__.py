"""One page of pictures about a model and what is on record for it: data, figures, page."""
