#!/usr/bin/env bash
# Builds the documentation site into target/site; open target/site/index.html, or serve it, which the search needs:
# browsers start no workers in pages that are opened as files.
#
#   site/build.sh            builds
#   site/build.sh serve      serves it on this machine, and builds it anew when a page changes
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../tests/python/environment.sh" docs | tail -n 1)
case ${1:-build} in
  build) options=(build --strict --clean) ;;
  serve) options=(serve) ;;
  *) echo "${1}: expected build or serve" >&2 && exit 2 ;;
esac
# A notice about the generator's next version, which a build does not need.
export NO_MKDOCS_2_WARNING=1
exec "$python" -m mkdocs "${options[@]}" --config-file "$here/mkdocs.yml"
