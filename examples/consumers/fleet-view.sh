#!/bin/sh
# The conditions of every package variant, rebuilt from the public topics alone (kcat and jq).
#
#   fleet-view.sh kafka:9092 blue [FOLDER]    the view as it is now; "" stands for no prefix
#
# FOLDER (./fleet-view by default) has what the former runs have read: the first one reads the latest events, a
# further one only what has changed since. A run that is killed is made again by the next one. A line is
# NAMESPACE/NAME, condition type, status and reason, between tabs; the lines are sorted by their bytes. What was
# dropped as a repetition is counted on stderr.
set -eu
[ $# -ge 2 ] || { echo "usage: fleet-view.sh HOST:PORT[,HOST:PORT...] PREFIX [FOLDER]" >&2; exit 2; }
bootstrap=$1 prefix=${2:+$2.} folder=${3:-fleet-view}
latest=${prefix}pvbus.conditions.latest changes=${prefix}pvbus.conditions
state=$folder/state.json # {"offsets": {partition: next offset}, "events": {key: last event}}
mkdir -p "$folder"
rm -rf "$folder"/new.* # of runs that were killed
new=$(mktemp -d "$folder/new.XXXXXX")
trap 'rm -rf "$new"' EXIT

# Committed records only: else events of steps that were never made are read, too. At the end of a partition a broker
# waits for more, by default half a second.
read_topic() {
  kcat -b "$bootstrap" -X isolation.level=read_committed -X auto.offset.reset=error -X fetch.wait.max.ms=10 \
    -C -q -e -J "$@"
}

# Whether we know the type of an event; the data of another one may have any fields.
known='def is_known: (.headers // []) as $all | any(range(0; $all | length; 2);
  $all[.] == "ce_type" and $all[. + 1] == "dev.pvbus.condition.changed.v1");'

if [ ! -e "$state" ]; then
  # The end of the changes first: what changes while the table is read comes twice.
  # All topics are listed: a broker may make one that is asked for.
  kcat -b "$bootstrap" -L -J |
    jq -r --arg topic "$changes" '.topics[] | select(.topic == $topic).partitions[].partition' > "$new/partitions"
  [ -s "$new/partitions" ] || { echo "no topic $changes: check the prefix, and that pvbus has been started" >&2; exit 1; }
  set --
  while read -r number; do set -- "$@" -t "$changes:$number:-1"; done < "$new/partitions"
  tries=30
  until kcat -b "$bootstrap" -Q "$@" > "$new/ends" 2> "$new/error"; do # fails while a partition elects its leader
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { cat "$new/error" >&2; exit 1; }
    sleep 1
  done
  read_topic -t "$latest" -o beginning > "$new/latest"
  jq -Rn '[inputs | capture("\\[(?<key>[0-9]+)\\] offset (?<value>[0-9]+)") | .value |= tonumber] | from_entries
    | {offsets: .}' "$new/ends" > "$new/offsets"
  jq -cn --slurpfile state "$new/offsets" "$known"'reduce inputs as $record ($state[0] + {events: {}};
    if $record.payload == null or $record.payload == "" then del(.events[$record.key])
    elif $record | is_known then .events[$record.key] = ($record.payload | fromjson)
    else . end)' "$new/latest" > "$new/state.json"
  mv "$new/state.json" "$state"
fi

# A record is dropped if it or a later one of its condition is known. A condition that its object no longer has
# stays as an event with `last`, so that an older event that is delivered again does not bring it back.
jq -r '.offsets | to_entries[] | "\(.key) \(.value)"' "$state" | while read -r number offset; do
  read_topic -t "$changes" -p "$number" -o "$offset" < /dev/null || {
    echo "partition $number of $changes cannot be read from offset $offset. If that was deleted, remove the folder" \
      "$folder to begin anew" >&2
    exit 1
  }
done > "$new/changes"
jq -cn --slurpfile state "$state" "$known"'reduce inputs as $record ($state[0] + {counts: [0, 0, 0, 0]};
  .offsets[$record.partition | tostring] = $record.offset + 1
  | if $record | is_known then
      ($record.payload | fromjson) as $event
      | "\($event.kind)|\($event.namespace)/\($event.name)|\($event.condition.type)" as $key
      | .events[$key] as $last
      | if $last != null and $last.id == $event.id then .counts[1] += 1
        elif $last != null and $last.time > $event.time then .counts[2] += 1
        else .counts[0] += 1 | .events[$key] = $event end
    else .counts[3] += 1 end)' "$new/changes" > "$new/state.json"
mv "$new/state.json" "$state" # events and offsets change together

jq -r '.events[] | select(.kind == "PackageVariant" and (.last | not)) | .condition as $condition
  | ["\(.namespace)/\(.name)", $condition.type, $condition.status, $condition.reason // ""] | join("\t")' "$state" |
  LC_ALL=C sort
jq -r '.counts | "applied \(.[0]), repeated \(.[1]), stale \(.[2]), unknown \(.[3])"' "$state" >&2
