#!/bin/sh
# ruff 0.17.5: after a package is moved away, `ruff check` passes from its cache, and fails without.
#
# Guessed: "All checks passed!" from the cache is what a run without it says of the same files.
# Seen: I001 decides by looking for folders whether an import is of the project, so its verdict on a
# file depends on others. The cache does not know of them: the script is unchanged, and passes. A
# fresh clone, as CI has it, fails on the same commit.
# Source: https://docs.astral.sh/ruff/faq/#how-does-ruff-determine-which-of-my-imports-are-first-party-third-party-etc
#
# Seen:
#   status with the package, without it, without it and the cache: 0 0 1
# It makes its own environment, or takes FINDINGS_PYTHON=/path/to/python with the pinned versions.
# PYTHON names the interpreter to build from: 3.11 or later.
# Exit status: 0 if it is still so, 1 if not, 2 if the versions are others.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
    "${PYTHON:-python3}" -m venv "$folder/venv"
    python=$folder/venv/bin/python
    PIP_CONSTRAINT=/dev/null "$python" -m pip install -q ruff==0.17.5
fi
case $("$python" -m ruff --version) in
"ruff 0.17.5") ;;
*) echo "this finding is of ruff 0.17.5"; exit 2 ;;
esac
mkdir -p "$folder/project/house/bench"
cd "$folder/project"
touch house/__init__.py house/bench/__init__.py house/bench/case.py
printf 'import elsewhere\n\nfrom house.bench import case\n\nprint(elsewhere, case)\n' > script.py
status() {
    code=0
    "$python" -m ruff check -q --isolated --select I "$@" script.py > /dev/null || code=$?
    printf '%s' "$code"
}
with=$(status)
rm -r house/bench
without=$(status)
fresh=$(status --no-cache)
echo "status with the package, without it, without it and the cache: $with $without $fresh"
[ "$with $without $fresh" = "0 0 1" ]
