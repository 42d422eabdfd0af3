# shellcheck shell=bash
# Downloads by hash, keys by fingerprint. Part of kiln.sh.
set -euo pipefail

# kiln_download X: fetch X_URL into the download folder; prints the file's path. X_SHA256 is enforced when
# it is known. The hash that was seen goes into downloads.json either way, and from there to the lock file.
kiln_download() {
    local url_name=$1_URL sha_name=$1_SHA256 url from expected seen='' file how=first-seen
    url=${!url_name} expected=${!sha_name:-}
    # Two downloads of a component may have one name, at different hosts.
    file=$KILN_DIR/downloads/$KILN_COMPONENT/$1/${url##*/}
    mkdir -p "${file%/*}" || kiln_die "the folder ${file%/*} cannot be made"
    if [[ -f $file ]]; then
        seen=$(_kiln_sha256 "$file") || exit 1
    fi
    if [[ -z $seen || $seen != "$expected" ]]; then
        from=$(kiln_mirrored "$url") || exit 1
        kiln_say "downloading $from"
        rm -f "$file" || kiln_die "$file cannot be replaced"
        _kiln_fetch "$from" "$file.part"
        mv "$file.part" "$file" || kiln_die "$file.part cannot be renamed"
        seen=$(_kiln_sha256 "$file") || exit 1
    fi
    if [[ -n $expected && $seen != "$expected" ]]; then
        rm -f "$file" || true
        kiln_die "$url does not have the sha256 of the lock file: expected $expected, got $seen" \
            "if the vendor published it anew, look at why, then run: ./invoke lock --update"
    fi
    [[ -z $expected ]] || how=locked
    python3 "$KILN_DIR/lib/record.py" download "$KILN_ETC/downloads.json" "$url" "$seen" "$how" "$KILN_COMPONENT" \
        || kiln_die "$KILN_ETC/downloads.json cannot be written"
    printf '%s\n' "$file"
}

# Fetches URL into FILE, and goes on where a transfer ended when the host resets, refuses, truncates or stalls. Not by
# curl's --retry: before curl 7.71 (--retry-all-errors) it does not repeat these, and it begins each file anew.
_kiln_fetch() { # URL FILE
    local code wait
    rm -f "$2" || kiln_die "$2 cannot be replaced"
    for wait in 2 4 8 16 32 0; do
        code=$(curl --fail --location --silent --show-error --connect-timeout 20 --speed-limit 10000 --speed-time 60 \
            --continue-at - --proto '=https' --tlsv1.2 --write-out '%{http_code}' --output "$2" "$1") && return 0
        case $?:$code in
            *:408 | *:429) ;;
            # The host cannot go on in the middle, or the file was whole: begin anew.
            33:* | *:416) rm -f "$2" || kiln_die "$2 cannot be replaced" ;;
            *:4??) break ;;
        esac
        ((wait)) || break
        kiln_say "the download failed, trying again in $wait s"
        sleep "$wait" || kiln_die "sleep failed"
    done
    kiln_die "cannot download $1" "is the host reachable, and is this version still published?"
}

_kiln_sha256() {
    local sum
    sum=$(sha256sum <"$1") || kiln_die "$1 cannot be read"
    printf '%s\n' "${sum%% *}"
}

# kiln_unpack ARCHIVE [FLAG…]: prints the path of a new folder with what is in the archive; FLAG goes to tar.
kiln_unpack() {
    local archive=$1 tree
    shift
    tree=$(mktemp -d "$KILN_DIR/$KILN_COMPONENT.XXXXXX") || kiln_die "no folder can be made in $KILN_DIR"
    tar -xf "$archive" -C "$tree" "$@" >&2 || kiln_die "${archive##*/} cannot be unpacked"
    printf '%s\n' "$tree"
}

# ---------------------------------------------------------------- keys

# The primary keys' fingerprints in a keyring, one per line; works with GnuPG 2.0 too.
_kiln_primaries() { # GNUPGHOME
    local listing kind name primary=
    listing=$(gpg --homedir "$1" --batch --list-keys --with-colons --fingerprint 2>/dev/null) \
        || kiln_die "gpg cannot list the keys of a file"
    while IFS=: read -r kind _ _ _ _ _ _ _ _ name _; do
        if [[ $kind == pub ]]; then
            primary=yes
        elif [[ $kind == fpr && -n $primary ]]; then
            printf '%s\n' "$name"
            primary=
        fi
    done <<<"$listing"
}

# Makes the keyring `home`, which holds the key of FILE when that is FINGERPRINT and no other. In a subshell: the keyring
# is removed when that ends.
_kiln_import() { # FILE FINGERPRINT
    local keys
    home=$(mktemp -d) || kiln_die "no folder can be made for a keyring"
    trap 'rm -rf "$home"' EXIT
    [[ -n $2 ]] || kiln_die "no fingerprint given for ${1##*/}" "the facts about signing keys (keys.yaml) must name it"
    gpg --homedir "$home" --batch --quiet --import "$1" 2>/dev/null || kiln_die "${1##*/} is not an OpenPGP key file"
    keys=$(_kiln_primaries "$home") || exit 1
    keys=${keys//$'\n'/ }
    [[ $keys == "$2" ]] || kiln_die "${1##*/} holds the wrong key: expected $2, got ${keys:-none}" \
        "if the vendor rotated its key, prove it, then change its fingerprint in keys.yaml"
}

_kiln_check_key() (_kiln_import "$1" "$2") # FILE FINGERPRINT

# kiln_check_signature FILE SIGNATURE KEYFILE FINGERPRINT
kiln_check_signature() { _kiln_check_signature "$@" || exit 1; }

_kiln_check_signature() ( # FILE SIGNATURE KEYFILE FINGERPRINT
    _kiln_import "$3" "$4"
    status=$(gpg --homedir "$home" --batch --trust-model always --status-fd 1 --verify "$2" "$1" 2>/dev/null) \
        || kiln_die "${1##*/} is not what $4 signed"
    # The last field of VALIDSIG is the primary key, whichever subkey signed.
    grep -q "^\[GNUPG:\] VALIDSIG .* $4\$" <<<"$status" || kiln_die "${1##*/} has a signature, but not by $4"
    kiln_say "signature of ${1##*/} is good ($4)"
)

# kiln_repo_key FILE FINGERPRINT NAME: check the key, then hand it to the package manager; prints what the
# repository's definition must name.
kiln_repo_key() {
    local root=${KILN_ROOT:-} target=/usr/share/keyrings/$3.gpg armoured
    _kiln_check_key "$1" "$2" || exit 1
    if [[ $KILN_FAMILY == debian ]]; then
        # apt goes by the name. 1: no such line, the key is binary.
        armoured=$(grep -c 'BEGIN PGP' "$1") || (($? == 1)) || kiln_die "$1 cannot be read"
        ((armoured == 0)) || target=${target%.gpg}.asc
    else
        target=/etc/pki/rpm-gpg/RPM-GPG-KEY-$3
    fi
    install -D -m 0644 "$1" "$root$target" || kiln_die "$target cannot be written"
    if [[ $KILN_FAMILY == debian ]]; then
        printf '%s\n' "$target"
    else
        rpm --import "$root$target" || kiln_die "rpm cannot import $target"
        printf 'file://%s\n' "$target"
    fi
}
