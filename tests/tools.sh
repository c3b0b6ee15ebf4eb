# What scripts need to find the programs that they need; to be read by them with `source`.

say() { printf '\n== %s\n' "$*"; }
give_up() { printf '%s: %s\n' "$0" "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
  else return 1
  fi
}

# install WHAT: by the system's package manager, if there is one and it may be used.
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

# need PROGRAM PACKAGE…: the program is there, or one of the packages brings it.
need() {
  local program=$1 package
  shift
  for package in "$@"; do
    if command -v "$program" >/dev/null; then break; fi
    install "$package" || true
  done
  command -v "$program" >/dev/null || give_up "$program is missing and could not be installed: install it and run this again"
}
