# SPDX-License-Identifier: Apache-2.0
# webserver: pages of a web server are read, ten for each line of its log.
# Made from personalities.toml by make.py; change it there.

set $dir=/tmp
set $nfiles=1000
set $nthreads=100
set $size_bigfileset=cvar(type=cvar-gamma,parameters=mean:16384;gamma:1.5)
set $size_logfiles=cvar(type=cvar-gamma,parameters=mean:16384;gamma:1.5)

define fileset name=bigfileset,path=$dir,size=$size_bigfileset,entries=$nfiles,dirwidth=20,prealloc=100
define fileset name=logfiles,path=$dir,size=$size_logfiles,entries=1,dirwidth=20,prealloc=100

define process name=webserver,instances=1
{
  thread name=webserverthread,memsize=10m,instances=$nthreads
  {
    flowop openfile name=openfile1,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile2,fd=1,iosize=1048576
    flowop closefile name=closefile3,fd=1
    flowop openfile name=openfile4,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile5,fd=1,iosize=1048576
    flowop closefile name=closefile6,fd=1
    flowop openfile name=openfile7,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile8,fd=1,iosize=1048576
    flowop closefile name=closefile9,fd=1
    flowop openfile name=openfile10,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile11,fd=1,iosize=1048576
    flowop closefile name=closefile12,fd=1
    flowop openfile name=openfile13,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile14,fd=1,iosize=1048576
    flowop closefile name=closefile15,fd=1
    flowop openfile name=openfile16,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile17,fd=1,iosize=1048576
    flowop closefile name=closefile18,fd=1
    flowop openfile name=openfile19,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile20,fd=1,iosize=1048576
    flowop closefile name=closefile21,fd=1
    flowop openfile name=openfile22,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile23,fd=1,iosize=1048576
    flowop closefile name=closefile24,fd=1
    flowop openfile name=openfile25,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile26,fd=1,iosize=1048576
    flowop closefile name=closefile27,fd=1
    flowop openfile name=openfile28,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile29,fd=1,iosize=1048576
    flowop closefile name=closefile30,fd=1
    flowop appendfilerand name=appendfilerand31,filesetname=logfiles,fd=2,iosize=16384
  }
}

run 60
