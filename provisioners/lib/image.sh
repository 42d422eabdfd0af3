# shellcheck shell=bash
# Files and units of the image. Part of kiln.sh.
set -euo pipefail

# kiln_unit_exists UNIT: is there such a unit file?
kiln_unit_exists() {
    local listed
    # 1: newer versions of systemd have no unit of that name; older ones end with 0.
    listed=$(systemctl list-unit-files --no-legend "$1") || (($? == 1)) || kiln_die "systemctl cannot list units"
    [[ -n $listed ]]
}

# kiln_install_runtime path…: files and folders below runtime/, owned by root.
kiln_install_runtime() { _kiln_install_below runtime "$@"; }

# kiln_install_files path…: what was rendered for this recipe, below files/; on top of what runtime/ has.
kiln_install_files() { _kiln_install_below files "$@"; }

_kiln_install_below() { # FOLDER path…
    local folder=$1 path file files source mode start
    shift
    for path in "$@"; do
        [[ -e $KILN_DIR/$folder/$path ]] || kiln_die "$folder/$path is missing from the upload" \
            "a file of files/ is rendered if a component's files(recipe) names it"
        files=$(cd "$KILN_DIR/$folder" && find "$path" -type f ! -name '*.pyc') || kiln_die "$folder/$path cannot be listed"
        while read -r file; do
            [[ -n $file ]] || continue
            source=$KILN_DIR/$folder/$file mode=0644 start=
            # Fails at the end of a file of one byte.
            IFS= read -r -n 2 start <"$source" || true
            [[ $start != '#!' ]] || mode=0755
            install -D -m "$mode" "$source" "${KILN_ROOT:-}/$file" || kiln_die "/$file cannot be installed"
        done <<<"$files"
        kiln_record "files+=/$path"
    done
}

# kiln_install_units unit…: units of runtime/ with their drop-ins, and those for the beginning of their name. These need
# systemd 240 and are left out where it is older: Amazon Linux 2 has 219.
kiln_install_units() {
    local unit folder=etc/systemd/system dropins systemd old
    # systemd 252 (252.22-1~deb12u1)
    systemd=$(systemctl --version | awk 'NR == 1 { print int($2) }') || kiln_die "systemctl does not run"
    for unit in "$@"; do
        kiln_install_runtime "$folder/$unit"
        # A parent from the original pipeline has a unit by the name of our alias.
        old=$(sed -n 's/^Alias=//p' "$KILN_DIR/runtime/$folder/$unit") || kiln_die "$unit cannot be read"
        if [[ -n $old && -f ${KILN_ROOT:-}/$folder/$old && ! -L ${KILN_ROOT:-}/$folder/$old ]]; then
            kiln_say "replacing the parent's $old"
            systemctl --quiet --no-reload disable "$old" || kiln_die "systemd cannot disable $old"
            rm "${KILN_ROOT:-}/$folder/$old" || kiln_die "/$folder/$old cannot be removed"
        fi
        ((systemd >= 240)) || continue
        for dropins in "$folder/$unit.d" "$folder/kiln-.service.d" "$folder/kiln-gpu-.service.d"; do
            [[ $unit != kiln-*.service || ! -d $KILN_DIR/runtime/$dropins ]] || kiln_install_runtime "$dropins"
        done
    done
}

# kiln_enable unit…: at the next boot. Nothing is started on the build instance, so systemd does not read
# all units again each time.
kiln_enable() {
    systemctl --quiet --no-reload enable "$@" || kiln_die "systemd cannot enable $*"
    kiln_record "units+=$*"
}
