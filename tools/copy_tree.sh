#!/usr/bin/env bash
# Copies the files of the tree that git knows or would take to FOLDER, to build and test them apart. What has not changed there
# keeps its date, and what is no longer in the tree goes.
#
#   tools/copy_tree.sh build/torch-2.11.0
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:?a folder}
mkdir -p "$to"
export LC_ALL=C
here() { comm -z -23 <(git ls-files -z --cached --others --exclude-standard | sort -zu) <(git ls-files -z --deleted | sort -zu); }
if [ -e "$to/.copied" ]; then
  comm -z -23 "$to/.copied" <(here) | (cd "$to" && xargs -0 -r rm -f --)
fi
here | xargs -0 cp -pPu --parents -t "$to"
here >"$to/.copied"
