"""Does each row's parent AMI exist? Asked where there are AWS credentials; read-only requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.cloud import parents
from kiln.cloud.target import Target
from kiln.preflight.answers import ParentAnswer, State

_AT_ONCE = 4


def ask_parents(recipes: Sequence[Recipe], target: Target | None) -> Mapping[str, ParentAnswer]:
    """The answer about each row's parent AMI, by the row's name.

    Without a target (no credentials), and where AWS refuses to say, a row is not asked for.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda recipe: _ask(recipe, target), recipes)
        return {recipe.name: answer for recipe, answer in zip(recipes, answers, strict=True)}


def _ask(recipe: Recipe, target: Target | None) -> ParentAnswer:
    named = str(recipe.source_ami)
    if target is None:
        return ParentAnswer(named, None, detail="no AWS credentials")
    try:
        parent = parents.resolve(recipe, target)
    except parents.ParentNotFoundError as error:
        return ParentAnswer(named, State.MISSING, detail=error.message)
    except KilnError as error:
        return ParentAnswer(named, None, detail=error.message)
    return ParentAnswer(named, State.PUBLISHED, ami=parent.ami_id, detail=parent.name)
