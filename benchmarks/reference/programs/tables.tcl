# tables.tcl ROWS ROUNDS: rows of text as dicts and lists, joined, sorted and summed.
# Deterministic: random numbers come from a generator of its own.
set state 12345
proc random {below} {
    global state
    set state [expr {($state * 1103515245 + 12345) & 0x7fffffff}]
    return [expr {($state >> 8) % $below}]
}
proc make {rows} {
    set table {}
    for {set i 0} {$i < $rows} {incr i} {
        lappend table [dict create id $i key k[random 5000] amount [random 100000] text [string repeat ab[random 97] 4]]
    }
    return $table
}
proc group {table} {
    set sums [dict create]
    foreach row $table {
        dict incr sums [dict get $row key] [dict get $row amount]
    }
    return $sums
}
proc smooth {amounts} {
    set out {}
    set last 0
    foreach amount $amounts {
        set last [expr {0.9 * $last + 0.1 * $amount}]
        lappend out $last
    }
    return $out
}
lassign $argv rows rounds
set table [make $rows]
set total 0
for {set round 0} {$round < $rounds} {incr round} {
    set sums [group $table]
    set ordered [lsort -integer -stride 2 -index 1 $sums]
    set total [expr {$total + [lindex $ordered end]}]
    set amounts [lmap row $table {dict get $row amount}]
    set smoothed [smooth [lsort -integer $amounts]]
    set total [expr {$total + int([lindex $smoothed end])}]
    set found 0
    foreach row $table {
        if {[regexp {b4[0-9]a} [dict get $row text]]} {
            incr found
        }
    }
    set total [expr {$total + $found}]
}
puts $total
