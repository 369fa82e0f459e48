# SPDX-License-Identifier: Apache-2.0
# varmail: a mail spool of one file a mail: deliver and sync, read and mark and sync, read, delete.
# Made from personalities.toml by make.py; change it there.

set $dir=/tmp
set $nfiles=1000
set $nthreads=16
set $size_bigfileset=cvar(type=cvar-gamma,parameters=mean:16384;gamma:1.5)

define fileset name=bigfileset,path=$dir,size=$size_bigfileset,entries=$nfiles,dirwidth=1000000,prealloc=80

define process name=varmail,instances=1
{
  thread name=varmailthread,memsize=10m,instances=$nthreads
  {
    flowop deletefile name=deletefile1,filesetname=bigfileset
    flowop createfile name=createfile2,filesetname=bigfileset,fd=1
    flowop appendfilerand name=appendfilerand3,fd=1,iosize=16384
    flowop fsync name=fsync4,fd=1
    flowop closefile name=closefile5,fd=1
    flowop openfile name=openfile6,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile7,fd=1,iosize=1048576
    flowop appendfilerand name=appendfilerand8,fd=1,iosize=16384
    flowop fsync name=fsync9,fd=1
    flowop closefile name=closefile10,fd=1
    flowop openfile name=openfile11,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile12,fd=1,iosize=1048576
    flowop closefile name=closefile13,fd=1
  }
}

run 60
