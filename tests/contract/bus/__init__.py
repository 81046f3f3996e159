"""The bus contract suite, applied; its checks are shipped in `tests.kit`."""

import pytest

pytest.register_assert_rewrite(
    "tests.kit.bus_contract",
    "tests.kit.bus_contract_churn",
    "tests.kit.bus_contract_groups",
    "tests.kit.bus_contract_worker",
)
