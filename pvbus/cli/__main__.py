"""`python -m pvbus.cli`, and the command `pvbus`."""

import signal

from pvbus.runtime.collector import end_collector, relax_collector


def run() -> None:
    """Run a command and exit. A Ctrl-C before the commands are imported ends the process without a trace."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    relax_collector()  # before everything else is imported, which makes many objects and no garbage
    from pvbus.cli.main import main  # it takes half a second

    signal.signal(signal.SIGINT, handler)
    try:
        main()
    finally:
        end_collector()


if __name__ == "__main__":
    run()
