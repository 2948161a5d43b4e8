# Runs inside a sandbox whose only door is "run this and tell what it printed":
#     bash -c THIS inside KEY FOLDER OPERATION [ARGUMENTS]
# Needs bash and coreutils. KEY names a shell that lives through an episode; FOLDER is where it goes
# on. A shell reads its orders from a named pipe and writes to another, which outlives it, because the
# jobs of an earlier shell go on writing there.
key=$1 folder=$2 operation=$3
shift 3
dir=/tmp/.shell-$key

start() {
    mkdir -p -m 700 -- "$dir" && rm -f -- "$dir"/{in,pid} && mkfifo -- "$dir/in" || exit 1
    [ -p "$dir/out" ] || mkfifo -- "$dir/out" || exit 1
    cd -- "$folder" 2>/dev/null || cd /
    # Opened for both ways, so that neither pipe ever ends or waits for its other side.
    setsid bash -c '
        exec 198<>"$1/out" 0<>"$1/in" >/dev/null 2>&1
        bash --noprofile --norc -s <&0 & pid=$!
        echo $pid >"$1/pid"
        wait $pid
        echo $? >"$1/ended-$pid"
        # A pipe that nobody has open forgets what was written to it.
        while [ "$(<"$1/pid")" = $pid ]; do read -r -t 1 _; done' shell "$dir" </dev/null >/dev/null 2>&1 &
    local round
    for round in {1..1000}; do [ -s "$dir/pid" ] && return; sleep 0.01; done
    exit 1
}

shell() { cat -- "$dir/pid" 2>/dev/null; }

# Whether the process is there, other than as one that is only waiting to be collected.
alive() {
    local stat
    read -r stat 2>/dev/null <"/proc/$1/stat" || return
    stat=${stat##*) }
    [[ $stat != [ZX]* ]]
}

# Processes now, and those that lead to this one.
processes() { local all=(/proc/[0-9]*); echo "${all[*]#/proc/}"; }
ours() {
    local pid=$BASHPID stat
    while ((pid > 1)); do
        echo "$pid"
        read -r stat <"/proc/$pid/stat" || return
        set -- ${stat##*) }
        pid=$2
    done
}

# Kills every process that is not among the words of $1.
kill_others() {
    local spared=" $1 $(ours | tr '\n' ' ') " pid found round
    for round in {1..100}; do
        found=
        for pid in $(processes); do
            [[ $spared != *" $pid "* ]] && alive "$pid" || continue
            kill -KILL "$pid" 2>/dev/null
            found=1
        done
        [ "$found" ] || return
    done
}

# Kills the shell and every process that its last command, or another since, has started.
kill_since() {
    local spared=$(cat -- "$dir/before")
    kill_others "${spared// $(shell) / }"
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# Collects a command's output until it has ended or $3 milliseconds have passed: 0 it has ended.
collect() {
    local token=$1 limit=$2 until=$(($(now_ms) + $3)) ended size=0 before drain=
    while :; do
        finished || ! alive "$(shell)"
        ended=$?
        # After that look: what the command has printed is in the pipe by then. Nothing here waits
        # for more. What is beyond the limit is dropped as it comes, so that nobody waits for us.
        before=$size
        dd bs=65536 count=64 iflag=nonblock status=none <&3 >>"$dir/output" 2>/dev/null
        size=$(stat -c %s -- "$dir/output" 2>/dev/null || echo 0)
        if ((size > limit)) && [ -z "$drain" ]; then
            truncate -s $((limit + 1)) -- "$dir/output"
            cat <>"$dir/out" >/dev/null &
            drain=$!
        fi
        ((ended == 0 || $(now_ms) >= until)) && break
        ((size > before)) && sleep 0.002 || sleep 0.03
    done
    [ -z "$drain" ] || kill -KILL "$drain"
    return $ended
}
finished() { # of collect: whether the shell has told so, in a record that is whole
    local told
    IFS= read -r -d '' told 2>/dev/null <"$dir/status" && [[ $told == "$token "* ]]
}

# One line that says how it stands, the folder, and what was printed.
tell() {
    local seconds=$(($(now_ms) - $(cat -- "$dir/began")))
    echo "$1 ${2:--} $seconds"
    printf %s "$folder" | base64 -w 0
    echo
    head -c "$limit" -- "$dir/output" 2>/dev/null | base64 -w 0
    echo
}

await() { # TOKEN LIMIT MILLISECONDS LAST
    local limit=$2 code=
    exec 3<>"$dir/out"
    if collect "$1" "$limit" "$3"; then
        local status
        if IFS= read -r -d '' status <"$dir/status" && [[ $status == "$1 "* ]]; then
            status=${status#* }
            code=${status%% *} folder=${status#* }
        elif ! alive "$(shell)"; then
            local ended=$dir/ended-$(shell) round
            for round in {1..50}; do [ -s "$ended" ] && break; sleep 0.01; done
            code=$(cat -- "$ended" 2>/dev/null) || code=137 # its parent was killed too
            start
        fi
        tell ended "$code"
    elif (($4)); then
        folder=$(readlink "/proc/$(shell)/cwd" || echo "$folder")
        kill_since
        collect "$1" "$limit" 0
        start
        tell killed
    else
        echo running
    fi
}

run() { # TOKEN LIMIT MILLISECONDS LAST, the command on standard input
    [ -p "$dir/out" ] && alive "$(shell)" || start
    rm -f -- "$dir"/{status,output}
    cat >"$dir/command"
    now_ms >"$dir/began"
    echo " $(processes) " >"$dir/before"
    exec 3<>"$dir/out"
    # The first newline ends whatever a job may have written into this pipe by way of /proc; the
    # rest is one line, and so one write, for the same reason.
    printf '\nbuiltin eval "$(<%s/command)" </dev/null >&198 2>&1 198>&-; %s %s "$?" "${PWD-}" >%s/status\n' \
        "$dir" 'builtin printf "%s %s %s\0"' "$1" "$dir" 1<>"$dir/in"
    await "$@"
}

# A new shell in the same folder; nothing that the old one has started lives on.
restart() {
    kill_since
    start
}

# The tests come, from standard input, and go. Meanwhile what the jobs of the shell $1 print is
# dropped, so that none of them waits for a reader.
stage() {
    wipe
    mkdir -p /tests /logs && tar --no-same-owner -xpf - -C / || exit 1
    mkdir -p -- "$folder"
    start
    if [ -p "/tmp/.shell-$1/out" ]; then
        setsid cat <>"/tmp/.shell-$1/out" >/dev/null 2>&1 &
        echo $! >"$dir/drain"
    fi
}
judge() {
    kill_since
    [ -s "$dir/drain" ] && kill -KILL "$(cat -- "$dir/drain")"
    local told=/logs/verifier/reward.txt
    [ -f $told ] && [ ! -L $told ] && head -c 64 $told | base64 -w 0
    echo
    wipe
    rm -rf -- "$dir"
}
wipe() {
    local path
    for path in /tests /logs/verifier; do
        [ -L ${path%/verifier} ] && rm -f ${path%/verifier}
        rm -rf $path 2>/dev/null
    done
    mkdir -p /tests /logs
}

"$operation" "$@"
