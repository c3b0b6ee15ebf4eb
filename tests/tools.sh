# Functions that find and install the programs a script needs. Read with `source`.

# With the time since the script began, so that a step which has become slow is seen.
say() { printf '\n== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
give_up() { printf '%s: %s\n' "$0" "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
  else return 1
  fi
}

# install PACKAGE: uses the system's package manager, and fails without one or without permission.
install() {
  say "installing $1"
  if command -v apt-get >/dev/null; then
    as_root apt-get update -qq &&
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"
  elif command -v dnf >/dev/null; then as_root dnf install -y -q "$1"
  elif command -v apk >/dev/null; then as_root apk add --quiet "$1"
  elif command -v brew >/dev/null; then brew install --quiet "$1"
  else return 1
  fi
}

# need PROGRAM PACKAGE...: installs the packages in turn until the program is found.
need() {
  local program=$1 package
  shift
  for package in "$@"; do
    if command -v "$program" >/dev/null; then break; fi
    install "$package" || true
  done
  command -v "$program" >/dev/null || give_up "$program is missing and could not be installed: install it and run this again"
}
