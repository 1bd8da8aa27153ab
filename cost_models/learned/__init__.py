"""A correction of the analytical models, learned from a user's records with xgboost."""

from .facts import Facts
from .features import Sample
from .model import LearnedModel
from .storage import load, save

__all__ = ["Facts", "LearnedModel", "Sample", "load", "save"]
