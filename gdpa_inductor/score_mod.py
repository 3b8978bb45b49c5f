"""The public name of score programs; the language itself is `program`."""

from .program.score_mod import ScoreMod as ScoreMod
from .program.score_mod import ScoreModError as ScoreModError
