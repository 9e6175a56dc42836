#!/bin/sh
# Instructions of one request, counted by callgrind: `bench/count.sh [CASE...]`, all cases unless named.
#
# Every case runs twice, with few and with many requests. A line says of each
#
#   instructions  the difference of both runs, for one request
#   over-bare     the same less that of the handler without a layer
#   files         how many files of crates/*/src the difference is in, with an instruction or more
#                 for every ten requests, wherever it was inlined to
#
# The cases are those of `count-library`, of `count-macros` and, as redis/CASE, of `count-redis`: client
# instructions for a decision, with 1024 tasks that share batches. The sizes of these vary from run to
# run, and the instructions with them.
#
# What is left in target/count: CASE.few and CASE.many for callgrind_annotate, and CASE.files, the
# files with the instructions of a request in each.
set -eu

cd "$(dirname "$0")/.."
root=$(pwd -P)
target=${CARGO_TARGET_DIR:-target}
out=$target/count
few=${TOLLGATE_COUNT_FEW:-2000}
many=${TOLLGATE_COUNT_MANY:-12000}

command -v valgrind >/dev/null || {
	echo "valgrind was not found. On Debian and Ubuntu: sudo apt-get install -y valgrind" >&2
	exit 1
}
# Lines, so that what is inlined is counted where it was written.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
build() { "${CARGO:-cargo}" build --locked --release -p tollgate-bench "$@"; }
build --bin count-library --bin count-redis
build --bin count-macros --features macros
mkdir -p "$out"

# profile FILE COMMAND...: runs it under callgrind, with the option in $collect.
profile() {
	into=$1
	shift
	# shellcheck disable=SC2086 # One option or none.
	valgrind --tool=callgrind ${collect:-} --callgrind-out-file="$out/$into" "$@" \
		>"$out/log" 2>&1 || {
		cat "$out/log" >&2
		exit 1
	}
}

# Prints the instructions of one request in each file, as "FILE INSTRUCTIONS", those of all as "total".
# In a profile fl=, fi= and fe= say in which file the lines that follow are; a file is named once, and
# is a number from then on. The line after calls= is what was called, not the caller's own.
per_request() {
	awk -v requests="$3" '
		FNR == 1 { part++; called = 0; file = ""; split("", names) }
		/^(fl|fi|fe|cfi|cfl)=/ {
			id = $0
			sub(/^[a-z]*=/, "", id)
			name = id
			sub(/\).*/, ")", id)
			if (sub(/^\([0-9]*\) /, "", name)) names[id] = name
			if ($0 !~ /^c/) file = names[id]
			next
		}
		/^calls=/ { called = 1; next }
		/^[-+*0-9]/ {
			if (!called) { cost[file] += part == 1 ? -$2 : $2; total += part == 1 ? -$2 : $2 }
			called = 0
		}
		END {
			for (file in cost) print file, cost[file] / requests
			print "total", total / requests
		}
	' "$1" "$2"
}

# count CASE FEW MANY COMMAND...: prints the line of one case; the number comes after the command.
count() {
	case=$1 less=$2 more=$3
	shift 3
	name=$(echo "$case" | tr / -)
	profile "$name.few" "$@" "$less"
	profile "$name.many" "$@" "$more"
	per_request "$out/$name.few" "$out/$name.many" "$((more - less))" >"$out/all"
	awk -v root="$root/crates/" '
		index($1, root) == 1 && $1 ~ /\/crates\/[^\/]*\/src\// && $2 >= 0.1 {
			print substr($1, length(root) - 6), $2
		}
	' "$out/all" | sort >"$out/$name.files"
	instructions=$(awk '$1 == "total" { printf "%.0f", $2 }' "$out/all")
	files=$(wc -l <"$out/$name.files")
	if [ "$case" = bare ]; then bare=$instructions; fi
	over=
	case $case in
	layer-* | empty-layer | governor | by-hand) over=" over-bare=$((instructions - bare))" ;;
	esac
	echo "case=$case instructions=$instructions$over files=$((files))"
}

library=$target/release/count-library
macros=$target/release/count-macros
redis=$target/release/count-redis
all="$("$library") $("$macros") redis/random redis/hot redis/three redis/envoy"
# The one that others subtract comes first, and once.
for case in bare ${*:-$all}; do
	# The clock of most cases is calibrated first, by a number of instructions that varies. Those with
	# Redis have no such clock, but threads, of which only one would be counted.
	case $case in
	*redis*) collect= ;;
	*) collect='--toggle-collect=*counted*' ;;
	esac
	case $case in
	bare) if [ -z "${bare:-}" ]; then count bare "$few" "$many" "$library" bare; fi ;;
	# The same number for each of its tasks.
	redis/*) count "$case" $((few / 100 * 1024)) $((many / 100 * 1024)) "$redis" "${case#redis/}" ;;
	macro | readme | *-macros) count "$case" "$few" "$many" "$macros" "$case" ;;
	*) count "$case" "$few" "$many" "$library" "$case" ;;
	esac
done
rm -f "$out/all" "$out/log"
