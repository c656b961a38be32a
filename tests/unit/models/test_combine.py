import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memsampd.errors import UsageError
from memsampd.models.combine import combine
from memsampd.models.records import MissRatioCurve

Part = tuple[float, MissRatioCurve | None]


def curve(
    *miss_ratio: float,
    low: list[float] | None = None,
    high: list[float] | None = None,
    policy: str = "lru",
) -> MissRatioCurve:
    middle = np.array(miss_ratio, np.float64)
    return MissRatioCurve(
        sizes_bytes=1024 * 2 ** np.arange(len(middle)),
        miss_ratio=middle,
        low=middle if low is None else np.array(low),
        high=middle if high is None else np.array(high),
        policy=policy,
        line_bytes=64,
        sampled_accesses=100,
    )


def test_weights_are_shares_of_accesses() -> None:
    overall = combine([(3e9, curve(1.0, 0.4)), (1e9, curve(0.2, 0.0))])
    assert overall is not None
    assert overall.miss_ratio == pytest.approx([0.8, 0.3])
    assert (overall.low == overall.miss_ratio).all()
    assert (overall.high == overall.miss_ratio).all()
    assert overall.sampled_accesses == 200


def test_bounds_are_combined_like_the_estimate() -> None:
    one = curve(0.5, 0.5, low=[0.5, 0.0], high=[0.5, 0.5])
    overall = combine([(1, one), (1, curve(0.1, 0.1))])
    assert overall is not None
    assert overall.low == pytest.approx([0.3, 0.05])
    assert overall.high == pytest.approx([0.3, 0.3])


def test_a_phase_without_a_curve_opens_the_bounds_by_its_weight() -> None:
    overall = combine([(3, curve(0.4, 0.2)), (1, None)])
    assert overall is not None
    assert overall.miss_ratio == pytest.approx([0.4, 0.2])
    assert overall.low == pytest.approx([0.3, 0.15])
    assert overall.high == pytest.approx([0.55, 0.4])


@pytest.mark.parametrize(
    "parts", [[], [(1, None)], [(0, curve(0.5))], [(0, curve(0.5)), (1, None)]]
)
def test_without_any_curve_there_is_none(parts: list[Part]) -> None:
    assert combine(parts) is None


def test_a_phase_without_weight_changes_nothing() -> None:
    overall = combine([(1, curve(0.5)), (0, curve(0.1))])
    assert overall is not None
    assert overall.miss_ratio.tolist() == [0.5]


@given(
    st.lists(
        st.tuples(
            st.floats(1e-6, 1e12),
            st.none() | st.lists(st.floats(0, 1), min_size=4, max_size=4),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_contract_of_curves_survives(parts: list[tuple[float, list[float] | None]]) -> None:
    given_parts = [(w, None if v is None else curve(*sorted(v, reverse=True))) for w, v in parts]
    overall = combine(given_parts)
    if overall is None:
        assert all(c is None for _, c in given_parts)
        return
    for values in (overall.low, overall.miss_ratio, overall.high):
        assert (np.diff(values) <= 0).all()
        assert ((values >= 0) & (values <= 1)).all()
    assert (overall.low <= overall.miss_ratio).all()
    assert (overall.miss_ratio <= overall.high).all()


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_odd_weights_are_refused(weight: float) -> None:
    with pytest.raises(UsageError, match="weight"):
        combine([(weight, curve(0.5)), (1, curve(0.5))])


def test_curves_that_do_not_fit_are_refused() -> None:
    for other in (
        curve(0.5, policy="random"),
        curve(0.5, 0.4),
        replace(curve(0.5), line_bytes=128),
    ):
        with pytest.raises(UsageError, match="like"):
            combine([(1, curve(0.5)), (1, other)])
