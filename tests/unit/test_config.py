"""Settings: where they come from, and that everything wrong is told at once."""

from pathlib import Path

import pytest

from pvbus.core.errors import UsageError
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import (
    ApiServerConfig,
    RolloutConfig,
    ServiceConfig,
    ServicesConfig,
    UnrollConfig,
)


def test_defaults_need_nothing() -> None:
    """Every setting has a default."""
    assert load_config(ServicesConfig, {}) == ServicesConfig()


def test_a_variable_goes_before_the_file(tmp_path: Path) -> None:
    """Both are read, and the variable wins; text becomes the type of the field."""
    file = tmp_path / "pvbus.yaml"
    file.write_text("logLevel: debug\nremovalsMax: 5\nfetchSeconds: 3\n")
    given = {"PVBUS_CONFIG": str(file), "PVBUS_REMOVALS_MAX": "7", "PVBUS_REMOVALS_SHARE": "0.5"}
    config = load_config(UnrollConfig, given)
    assert config.log_level == "debug"
    assert config.limits == (5.0, 7, 0.5)


def test_a_mapping_is_written_as_yaml() -> None:
    """Functions may stand in a variable."""
    given = {"PVBUS_FUNCTIONS": "{search-replace: /bin/sr --fast}", "PVBUS_ALLOW_EXEC": "true"}
    config = load_config(ApiServerConfig, given)
    assert config.functions == {"search-replace": "/bin/sr --fast"}
    assert config.allow_exec is True
    assert (config.isolate_functions, config.function_engine, config.function_runner) == (True, "", "")


def test_every_problem_is_told() -> None:
    """Three wrong variables are three lines."""
    given = {"PVBUS_HEALTH_PORT": "70000", "PVBUS_LOG_LEVEL": "loud", "PVBUS_LOG_FORMAT": "xml"}
    with pytest.raises(UsageError) as caught:
        load_config(ServiceConfig, given)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "PVBUS_LOG_LEVEL",
        "PVBUS_LOG_FORMAT",
        "PVBUS_HEALTH_PORT",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "cannot read"),
        ("- a", "must be a mapping"),
        ("removalMax: 1", "removalMax: unknown setting; did you mean"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    """No YAML, no mapping, or a name that nobody knows."""
    file = tmp_path / "pvbus.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        load_config(ServiceConfig, {"PVBUS_CONFIG": str(file)})


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    """Nothing but comments is fine."""
    file = tmp_path / "pvbus.yaml"
    file.write_text("# nothing\n")
    assert load_config(ServiceConfig, {"PVBUS_CONFIG": str(file)}) == ServiceConfig()


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        (
            "PVBUS_KAFKA_PASSWORD",
            "PVBUS_KAFKA_PASSWORD: unknown setting; did you mean PVBUS_KAFKA_PASSWORD_FILE?",
        ),
        ("PVBUS_KAFKA_FOO", "PVBUS_KAFKA_FOO: unknown setting"),
        ("PVBUS_REMOVAL_MAX", "PVBUS_REMOVAL_MAX: unknown setting; did you mean PVBUS_REMOVALS_MAX?"),
        (
            "PVBUS_REMOVAL_DELAY_SECONDS",  # its name before
            "PVBUS_REMOVAL_DELAY_SECONDS: unknown setting; did you mean PVBUS_REMOVAL_QUIET_SECONDS?",
        ),
    ],
)
def test_a_mistyped_variable_is_no_setting_left_out(name: str, reported: str) -> None:
    """It is refused by all processes, also by those that would not have the setting."""
    for type_ in (ApiServerConfig, ServiceConfig):
        with pytest.raises(UsageError) as caught:
            load_config(type_, {name: "1"})
        assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [reported]


def test_variables_of_others_are_left_alone() -> None:
    """Those of a Kubernetes Service `pvbus-kafka`, of tests, of another service, and of other programs."""
    kubernetes = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_CLIENTS", "PORT", "PORT_9092_TCP_ADDR")
    others = ("PVBUS_CACHE", "PVBUS_TEST_KAFKA", "PVBUS_REMOVALS_MAX", "PVBUS_FUNCTIONS", "KAFKA_FOO")
    given = dict.fromkeys((*(f"PVBUS_KAFKA_{each}" for each in kubernetes), *others), "1")
    assert load_config(ServiceConfig, given) == ServiceConfig()


def test_what_a_setting_takes_is_told_in_words() -> None:
    """Nobody has to know the names of Python's types."""
    given = {"PVBUS_KAFKA_TLS": "yes", "PVBUS_KAFKA_SASL": "plain"}
    with pytest.raises(UsageError) as caught:
        load_config(ServiceConfig, given)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "PVBUS_KAFKA_TLS: must be true or false (given: 'yes')",
        "PVBUS_KAFKA_SASL: must be nothing or scram-sha-256 or scram-sha-512 or oauthbearer (given: 'plain')",
    ]


def test_the_limits_of_removals_are_settings() -> None:
    """Quiet time, number and share, with the defaults that the guard is described by."""
    config = load_config(UnrollConfig, {})
    assert (config.removal_quiet_seconds, config.removals_max, config.removals_share) == (5.0, 5, 0.1)
    given = {"PVBUS_REMOVAL_QUIET_SECONDS": "0.5", "PVBUS_REMOVALS_MAX": "7", "PVBUS_REMOVALS_SHARE": "0.25"}
    config = load_config(UnrollConfig, given)
    assert (config.removal_quiet_seconds, config.removals_max, config.removals_share) == (0.5, 7, 0.25)
    given = {"PVBUS_REMOVAL_QUIET_SECONDS": "601", "PVBUS_REMOVALS_MAX": "-1", "PVBUS_REMOVALS_SHARE": "1.1"}
    with pytest.raises(UsageError) as caught:
        load_config(UnrollConfig, given)
    assert all(name in str(caught.value) for name in given)


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("a", ("a",)), ("b,a", ("a", "b")), ("team-a, team-b", ("team-a", "team-b")), ("a,a", ("a",))],
)
def test_namespaces_are_names_separated_by_commas(text: str, names: tuple[str, ...]) -> None:
    assert load_config(ServiceConfig, {"PVBUS_NAMESPACES": text}).namespace_names == names


@pytest.mark.parametrize("text", ["a b", "a,,b", "Team", "a;b", ",a", "a,", "*", "a/b"])
def test_what_cannot_be_a_namespace_is_refused(text: str) -> None:
    """Else a mistyped list would look like one that is meant."""
    with pytest.raises(
        UsageError, match="PVBUS_NAMESPACES: must be names of namespaces, separated by commas"
    ):
        load_config(ServiceConfig, {"PVBUS_NAMESPACES": text})


@pytest.mark.parametrize(
    "url", ["", "http://prometheus:9090", "https://p.example/tenant/a", "http://[::1]:9090/"]
)
def test_the_address_of_prometheus_is_a_url(url: str) -> None:
    assert load_config(RolloutConfig, {"PVBUS_PROMETHEUS_URL": url}).prometheus_url == url


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://p", "http://", "http://me:secret@p", "http://p/?a=b"]
)
def test_no_other_address_of_prometheus_is_taken(url: str) -> None:
    """A password in it would be shown wherever a process's environment is."""
    with pytest.raises(UsageError, match="PVBUS_PROMETHEUS_URL: must be a URL such as"):
        load_config(ServicesConfig, {"PVBUS_PROMETHEUS_URL": url})
