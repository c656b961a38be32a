"""The harness needs atheris, which only ``make fuzz`` installs: it is no test of its own."""

collect_ignore = ["fuzz_perf_records.py"]
