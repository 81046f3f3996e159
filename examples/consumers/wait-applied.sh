#!/bin/sh
# Waits until a change of a PackageVariantSet has arrived everywhere, by the topic of the latest events alone (kcat
# and jq).
#
#   wait-applied.sh kafka:9092 blue default/web UID 4 TargetsApplied       "" stands for no prefix
#
# It ends once the condition of the set with this uid is True for generation 4 or a later one. TargetsApplied says
# that each PackageVariant has the new spec, Ready that each has made its draft of it.
set -eu
[ $# -eq 6 ] || { echo "usage: wait-applied.sh HOST:PORT[,HOST:PORT...] PREFIX NAMESPACE/SET UID GENERATION CONDITION" >&2; exit 2; }
bootstrap=$1 latest=${2:+$2.}pvbus.conditions.latest name=$3 uid=$4 generation=$5 condition=$6
last=$(mktemp)
trap 'rm -f "$last"' EXIT

# Prints the last record of the set's condition, if it is there; exits 1 for no topic. Committed records only: else
# events of steps that were never made are read, too.
read_latest() {
  kcat -b "$bootstrap" -X isolation.level=read_committed -X auto.offset.reset=error -X fetch.wait.max.ms=10 \
    -C -q -e -J -t "$latest" "$@" |
    jq -cn --arg key "PackageVariantSet|$name|$condition" 'last(inputs | select(.key == $key)) // empty'
}

# All topics are listed: a broker may make one that is asked for.
kcat -b "$bootstrap" -L -J | jq -e --arg topic "$latest" 'any(.topics[]; .topic == $topic)' > "$last" ||
  { echo "no topic $latest: check the prefix, and that pvbus has been started" >&2; exit 1; }

# The key is always in the same partition: once it is found, only what is new there is read.
set -- -o beginning
said=
while :; do
  read_latest "$@" > "$last"
  [ -n "$said" ] || echo "waiting for $condition of $name at generation $generation" >&2
  said=yes
  if [ -s "$last" ]; then
    if jq -e --arg uid "$uid" --argjson generation "$generation" '(.payload // "") | if . == "" then false else
        fromjson | .uid == $uid and .condition.status == "True" and .condition.observedGeneration >= $generation end' \
      "$last" > /dev/null; then
      echo "$name: $condition is True for generation $generation"
      exit
    fi
    set -- -p "$(jq .partition "$last")" -o "$(jq '.offset + 1' "$last")"
  fi
  sleep 0.2
done
