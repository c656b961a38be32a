"""The replacement policies that are modelled, each by its cache model."""

from __future__ import annotations

from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack

MODELS: dict[str, type[StatStack] | type[StatCache]] = {"lru": StatStack, "random": StatCache}
